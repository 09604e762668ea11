"""stackformer.models"""
